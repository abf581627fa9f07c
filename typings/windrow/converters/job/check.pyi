from converters.job.check import *
