from sources.zarr.open_array import *
