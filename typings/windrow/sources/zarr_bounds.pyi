from sources.zarr_bounds import *
