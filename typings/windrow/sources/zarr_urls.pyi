from sources.zarr_urls import *
