from converters.zarr.example_encode import *
