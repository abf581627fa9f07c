from loader.quality.shuffle_quality import *
