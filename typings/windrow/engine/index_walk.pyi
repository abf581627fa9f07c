from loader.engine.index_walk import *
