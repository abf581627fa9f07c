from sources.zarr_small import *
