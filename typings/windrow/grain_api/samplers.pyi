from loader.grain_api.samplers import *
