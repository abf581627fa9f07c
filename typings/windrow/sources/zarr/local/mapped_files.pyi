from sources.zarr.local.mapped_files import *
