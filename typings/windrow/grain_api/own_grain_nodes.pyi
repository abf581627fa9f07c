from loader.grain_api.own_grain_nodes import *
