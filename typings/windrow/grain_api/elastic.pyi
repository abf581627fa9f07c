from loader.grain_api.elastic import *
