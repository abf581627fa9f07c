from converters.locks import *
