from converters.job.locks import *
