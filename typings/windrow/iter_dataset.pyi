from loader.iter_dataset import *
