from converters.tfds.to_zarr import *
