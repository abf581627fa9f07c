from loader.grain_api.from_grain import *
