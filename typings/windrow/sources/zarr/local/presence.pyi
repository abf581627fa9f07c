from sources.zarr.local.presence import *
