from sources.zarr_read import *
