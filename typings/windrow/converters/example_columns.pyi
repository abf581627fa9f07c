from converters.example_columns import *
