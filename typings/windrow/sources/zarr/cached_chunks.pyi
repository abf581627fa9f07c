from sources.zarr.cached_chunks import *
