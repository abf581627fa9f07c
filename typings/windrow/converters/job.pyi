from converters.job import *
