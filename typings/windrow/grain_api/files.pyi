from loader.grain_api.files import *
