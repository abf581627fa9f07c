from loader.grain_api.conversion import *
