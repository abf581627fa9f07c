from sources.zarr.pyramids import *
