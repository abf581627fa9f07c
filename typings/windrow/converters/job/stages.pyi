from converters.job.stages import *
