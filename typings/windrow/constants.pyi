from loader.constants import *
