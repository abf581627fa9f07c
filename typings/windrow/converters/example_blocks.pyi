from converters.example_blocks import *
