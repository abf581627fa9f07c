from sources.zarr.error_text import *
