from loader.workers.stacking import *
