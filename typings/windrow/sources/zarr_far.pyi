from sources.zarr_far import *
