from loader.stats.metrics import *
