from converters.worker import *
