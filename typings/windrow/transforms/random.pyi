from transforms.random import *
