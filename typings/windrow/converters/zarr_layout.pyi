from converters.zarr_layout import *
