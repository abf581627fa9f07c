from converters.example_wire import *
