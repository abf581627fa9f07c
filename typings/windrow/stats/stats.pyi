from loader.stats.stats import *
