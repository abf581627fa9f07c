from loader.part_forecast import *
