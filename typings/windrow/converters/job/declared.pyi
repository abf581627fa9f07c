from converters.job.declared import *
