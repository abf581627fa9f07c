from loader.grain_api.grain_nodes import *
