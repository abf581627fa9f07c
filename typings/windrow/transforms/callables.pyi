from transforms.callables import *
