from converters.job.job import *
