from converters.record_writing import *
