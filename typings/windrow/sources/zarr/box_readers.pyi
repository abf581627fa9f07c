from sources.zarr.box_readers import *
