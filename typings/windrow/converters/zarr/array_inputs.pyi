from converters.zarr.array_inputs import *
