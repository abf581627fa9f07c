from converters.zarr.records_work import *
