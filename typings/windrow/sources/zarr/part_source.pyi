from sources.zarr.part_source import *
