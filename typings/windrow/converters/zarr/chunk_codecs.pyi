from converters.zarr.chunk_codecs import *
