from loader.stats.read_counters import *
