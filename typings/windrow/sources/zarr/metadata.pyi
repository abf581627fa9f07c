from sources.zarr.metadata import *
