from loader.engine.thread_map import *
