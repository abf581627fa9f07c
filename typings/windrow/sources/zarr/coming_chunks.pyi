from sources.zarr.coming_chunks import *
