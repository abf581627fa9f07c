from loader.workers.by_value import *
