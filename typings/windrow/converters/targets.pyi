from converters.targets import *
