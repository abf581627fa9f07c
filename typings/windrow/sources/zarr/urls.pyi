from sources.zarr.urls import *
