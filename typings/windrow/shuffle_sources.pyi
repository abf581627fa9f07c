from loader.shuffle_sources import *
