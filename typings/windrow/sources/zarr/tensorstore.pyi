from sources.zarr.tensorstore import *
