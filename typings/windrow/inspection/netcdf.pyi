from loader.inspection.netcdf import *
