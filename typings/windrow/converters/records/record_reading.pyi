from converters.records.record_reading import *
