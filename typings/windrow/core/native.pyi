from loader.core.native import *
