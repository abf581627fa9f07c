from loader.progress import *
