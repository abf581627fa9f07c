from loader.data_statistics import *
