from converters.job.folder import *
