from loader.inspection_records import *
