from loader.run import *
