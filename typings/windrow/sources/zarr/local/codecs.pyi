from sources.zarr.local.codecs import *
