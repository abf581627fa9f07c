from converters.job.executor import *
