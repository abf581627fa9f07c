from converters.example_encode import *
