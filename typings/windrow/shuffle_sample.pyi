from loader.shuffle_sample import *
