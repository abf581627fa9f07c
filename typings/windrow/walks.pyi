from loader.walks import *
