from sources.zarr_codecs import *
