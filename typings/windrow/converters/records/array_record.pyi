from converters.records.array_record import *
