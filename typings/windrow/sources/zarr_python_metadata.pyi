from sources.zarr_python_metadata import *
