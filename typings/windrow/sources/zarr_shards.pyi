from sources.zarr_shards import *
