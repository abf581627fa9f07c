from transforms.padding import *
