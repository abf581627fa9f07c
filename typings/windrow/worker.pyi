from loader.worker import *
