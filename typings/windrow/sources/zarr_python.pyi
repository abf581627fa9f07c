from sources.zarr_python import *
