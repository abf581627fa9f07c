from loader.workers.shared_memory import *
