from sources.zarr.missing import *
