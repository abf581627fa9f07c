from converters.tfds_to_zarr import *
