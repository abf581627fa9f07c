from loader.torch import *
