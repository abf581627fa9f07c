from transforms.positions import *
