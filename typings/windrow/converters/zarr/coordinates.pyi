from converters.zarr.coordinates import *
