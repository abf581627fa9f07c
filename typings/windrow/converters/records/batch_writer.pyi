from converters.records.batch_writer import *
