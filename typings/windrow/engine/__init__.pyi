from loader.engine import *
