from loader.python import *
