from loader.grain_api.index_shuffle import *
