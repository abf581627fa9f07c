from loader.grain_api.options import *
