from loader.inspection_place import *
