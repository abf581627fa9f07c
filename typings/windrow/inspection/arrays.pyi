from loader.inspection.arrays import *
