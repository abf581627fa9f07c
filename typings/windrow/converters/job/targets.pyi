from converters.job.targets import *
