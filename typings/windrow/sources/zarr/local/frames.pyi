from sources.zarr.local.frames import *
