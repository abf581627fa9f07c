from converters.writeback import *
