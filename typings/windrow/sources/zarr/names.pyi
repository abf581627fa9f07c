from sources.zarr.names import *
