from loader.multiprocessing import *
