from sources.zarr.local.native_chunks import *
