from loader.quality.batch_sample import *
