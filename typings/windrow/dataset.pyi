from loader.dataset import *
