from loader.core import *
