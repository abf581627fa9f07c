from sources.zarr.level_cells import *
