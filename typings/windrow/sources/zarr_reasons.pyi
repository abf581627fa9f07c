from sources.zarr_reasons import *
