from sources.zarr.zarr_python import *
