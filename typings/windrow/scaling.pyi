from loader.scaling import *
