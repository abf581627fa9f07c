from sources.zarr.local.chunks import *
