from sources.zarr.tree import *
