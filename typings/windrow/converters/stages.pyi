from converters.stages import *
