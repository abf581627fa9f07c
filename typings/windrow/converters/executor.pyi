from converters.executor import *
