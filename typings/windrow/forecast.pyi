from loader.forecast import *
