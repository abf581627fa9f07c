from sources.zarr.opened import *
