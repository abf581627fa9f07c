from loader.grain_api.grain_attributes import *
