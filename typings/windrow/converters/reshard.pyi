from converters.reshard import *
