from sources.dataset_info import *
