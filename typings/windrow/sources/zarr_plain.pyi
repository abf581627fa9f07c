from sources.zarr_plain import *
