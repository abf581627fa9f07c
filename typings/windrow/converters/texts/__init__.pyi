from converters.texts import *
