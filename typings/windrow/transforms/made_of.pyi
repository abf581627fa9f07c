from transforms.made_of import *
