from transforms.streams import *
