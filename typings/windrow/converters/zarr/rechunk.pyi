from converters.zarr.rechunk import *
