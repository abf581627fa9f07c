from loader.grain_api.data_loader import *
