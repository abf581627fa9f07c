from loader.core.progress import *
