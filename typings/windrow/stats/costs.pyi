from loader.stats.costs import *
