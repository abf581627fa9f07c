from converters.zarr.rows import *
