from loader.inspection.pictures import *
