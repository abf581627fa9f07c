from loader.grain_api.tools import *
