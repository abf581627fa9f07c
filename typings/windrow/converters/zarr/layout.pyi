from converters.zarr.layout import *
