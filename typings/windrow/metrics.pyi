from loader.metrics import *
