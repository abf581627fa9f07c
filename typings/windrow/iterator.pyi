from loader.iterator import *
