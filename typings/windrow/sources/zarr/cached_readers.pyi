from sources.zarr.cached_readers import *
