from sources.zarr_store import *
