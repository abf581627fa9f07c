from converters.example_layout import *
