from loader.engine.chunk_prefetch import *
