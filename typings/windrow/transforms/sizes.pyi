from transforms.sizes import *
