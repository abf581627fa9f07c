from converters.array_inputs import *
