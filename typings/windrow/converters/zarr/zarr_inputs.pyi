from converters.zarr.zarr_inputs import *
