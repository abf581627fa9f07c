from sources.zarr_alone import *
