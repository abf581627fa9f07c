from converters.example import *
