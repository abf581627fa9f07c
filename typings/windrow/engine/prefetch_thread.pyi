from loader.engine.prefetch_thread import *
