from loader.inspection import *
