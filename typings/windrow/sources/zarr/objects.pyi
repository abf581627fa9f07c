from sources.zarr.objects import *
