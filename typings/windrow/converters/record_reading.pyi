from converters.record_reading import *
