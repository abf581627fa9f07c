from sources.zarr_access import *
