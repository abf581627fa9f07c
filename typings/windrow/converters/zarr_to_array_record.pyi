from converters.zarr_to_array_record import *
