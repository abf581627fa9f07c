from converters.job.inputs import *
