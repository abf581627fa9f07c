from loader.needed import *
