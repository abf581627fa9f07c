from sources.zarr.stored_objects import *
