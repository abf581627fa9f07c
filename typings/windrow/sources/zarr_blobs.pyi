from sources.zarr_blobs import *
