from loader.base import *
