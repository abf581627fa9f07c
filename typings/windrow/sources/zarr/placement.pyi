from sources.zarr.placement import *
