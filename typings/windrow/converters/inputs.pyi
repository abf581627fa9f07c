from converters.inputs import *
