from sources.zarr.local.single_records import *
