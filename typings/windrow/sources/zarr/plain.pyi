from sources.zarr.plain import *
