from loader.grain_api import *
