from sources.zarr.local.shards import *
