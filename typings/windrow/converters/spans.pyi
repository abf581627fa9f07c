from converters.spans import *
