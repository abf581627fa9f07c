from loader.stats import *
