from converters.batch_writer import *
