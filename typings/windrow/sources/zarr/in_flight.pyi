from sources.zarr.in_flight import *
