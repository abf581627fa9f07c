from sources.zarr.chunkwise import *
