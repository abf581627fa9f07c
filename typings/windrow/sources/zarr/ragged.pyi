from sources.zarr.ragged import *
