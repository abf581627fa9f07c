from transforms.halves import *
