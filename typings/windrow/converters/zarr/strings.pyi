from converters.zarr.strings import *
