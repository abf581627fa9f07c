from transforms.blocks import *
