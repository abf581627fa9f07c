from sources.zarr.refused import *
