from transforms.bins import *
