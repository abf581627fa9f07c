from converters.records.record_files import *
