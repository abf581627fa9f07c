from loader.inspection_netcdf import *
