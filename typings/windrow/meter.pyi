from loader.meter import *
