from transforms.moves import *
