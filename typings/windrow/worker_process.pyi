from loader.worker_process import *
