from converters.zarr.to_records import *
