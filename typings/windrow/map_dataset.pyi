from loader.map_dataset import *
