from loader.grain_api.records import *
