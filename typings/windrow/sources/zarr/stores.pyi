from sources.zarr.stores import *
