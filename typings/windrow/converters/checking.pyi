from converters.checking import *
