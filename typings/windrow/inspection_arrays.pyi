from loader.inspection_arrays import *
