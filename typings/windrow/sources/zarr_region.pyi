from sources.zarr_region import *
