from loader.shuffle_windows import *
