from converters.zarr.decoding import *
