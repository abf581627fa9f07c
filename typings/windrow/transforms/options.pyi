from transforms.options import *
