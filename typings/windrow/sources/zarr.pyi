from sources.zarr import *
