from sources.zarr_strays import *
