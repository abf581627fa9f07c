from sources.zarr.offsets import *
