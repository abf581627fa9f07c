from sources.zarr_folders import *
