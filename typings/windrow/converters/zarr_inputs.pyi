from converters.zarr_inputs import *
