from loader.workers.messages import *
