from converters.zarr.from_records import *
