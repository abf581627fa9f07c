from loader.base_iterator import *
