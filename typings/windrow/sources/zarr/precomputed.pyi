from sources.zarr.precomputed import *
