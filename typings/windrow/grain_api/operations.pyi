from loader.grain_api.operations import *
