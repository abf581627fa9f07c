from sources.zarr_chunks import *
