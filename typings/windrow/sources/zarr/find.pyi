from sources.zarr.find import *
