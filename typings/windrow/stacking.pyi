from loader.stacking import *
