from loader.formats import *
