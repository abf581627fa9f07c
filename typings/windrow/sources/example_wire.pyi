from sources.example_wire import *
