from loader.tuning import *
