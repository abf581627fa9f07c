from loader.core.ticker import *
