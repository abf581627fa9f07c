from loader.shown import *
