from loader.quality import *
