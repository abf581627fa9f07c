from converters.zarr import *
