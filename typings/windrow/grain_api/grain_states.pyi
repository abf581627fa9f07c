from loader.grain_api.grain_states import *
