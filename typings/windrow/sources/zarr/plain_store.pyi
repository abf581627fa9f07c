from sources.zarr.plain_store import *
