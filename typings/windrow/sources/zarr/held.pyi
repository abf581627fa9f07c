from sources.zarr.held import *
