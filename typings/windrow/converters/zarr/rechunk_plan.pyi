from converters.zarr.rechunk_plan import *
