from loader.workers.process import *
