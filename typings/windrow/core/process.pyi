from loader.core.process import *
