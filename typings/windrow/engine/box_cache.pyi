from loader.engine.box_cache import *
