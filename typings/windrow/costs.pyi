from loader.costs import *
