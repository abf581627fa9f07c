from loader.experimental import *
