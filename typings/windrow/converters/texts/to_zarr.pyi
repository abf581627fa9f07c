from converters.texts.to_zarr import *
