from converters.zarr_to_zarr import *
