from sources.zarr.source import *
