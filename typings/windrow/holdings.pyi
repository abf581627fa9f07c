from loader.holdings import *
