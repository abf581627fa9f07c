from converters.array_record_to_array_record import *
