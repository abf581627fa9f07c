from loader.grain_api.sharding import *
