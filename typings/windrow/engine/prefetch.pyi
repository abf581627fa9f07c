from loader.engine.prefetch import *
