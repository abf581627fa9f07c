from sources.zarr.over_tree import *
