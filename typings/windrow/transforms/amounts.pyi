from transforms.amounts import *
