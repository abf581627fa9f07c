from transforms.specs import *
