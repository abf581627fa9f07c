from converters.array_record import *
