from converters.records.record_writing import *
