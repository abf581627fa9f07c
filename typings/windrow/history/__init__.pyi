from loader.history import *
