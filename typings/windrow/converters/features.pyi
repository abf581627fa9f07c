from converters.features import *
