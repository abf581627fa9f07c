from loader.specs import *
