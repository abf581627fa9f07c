from loader.engine.chunk_cache import *
