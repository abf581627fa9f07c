from converters.zarr.ragged import *
