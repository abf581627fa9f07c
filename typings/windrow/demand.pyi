from loader.demand import *
