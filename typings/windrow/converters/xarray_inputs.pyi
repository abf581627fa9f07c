from converters.xarray_inputs import *
