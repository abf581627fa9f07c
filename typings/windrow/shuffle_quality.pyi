from loader.shuffle_quality import *
