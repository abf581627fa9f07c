from loader.engine.executors import *
