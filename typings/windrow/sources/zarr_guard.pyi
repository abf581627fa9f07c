from sources.zarr_guard import *
