from loader.stalls import *
