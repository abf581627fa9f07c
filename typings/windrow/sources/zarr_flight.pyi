from sources.zarr_flight import *
