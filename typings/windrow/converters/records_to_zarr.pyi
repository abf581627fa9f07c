from converters.records_to_zarr import *
