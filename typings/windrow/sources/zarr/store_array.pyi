from sources.zarr.store_array import *
