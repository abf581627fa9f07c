from converters.job.manifest import *
