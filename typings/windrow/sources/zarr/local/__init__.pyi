from sources.zarr.local import *
