from loader.workers.pool import *
