from sources.zarr.consolidated import *
