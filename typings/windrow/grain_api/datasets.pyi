from loader.grain_api.datasets import *
