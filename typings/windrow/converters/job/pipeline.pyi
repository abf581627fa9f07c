from converters.job.pipeline import *
