from loader.grain_api.loader_state import *
