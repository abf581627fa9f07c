from converters.decoding import *
