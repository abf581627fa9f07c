from transforms.packing import *
