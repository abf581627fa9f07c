from loader.samplers import *
