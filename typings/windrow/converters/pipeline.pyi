from converters.pipeline import *
