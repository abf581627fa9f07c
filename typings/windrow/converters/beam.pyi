from converters.beam import *
