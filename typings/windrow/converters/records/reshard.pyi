from converters.records.reshard import *
