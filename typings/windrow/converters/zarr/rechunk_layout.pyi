from converters.zarr.rechunk_layout import *
