from sources.zarr.python_store import *
