from converters.example_varints import *
