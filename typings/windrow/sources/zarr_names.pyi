from sources.zarr_names import *
