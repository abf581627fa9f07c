from sources.zarr.local.metadata import *
