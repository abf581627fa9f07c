from loader.spread import *
