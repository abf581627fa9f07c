from loader.stats.profiler import *
