from sources.zarr.spacing import *
