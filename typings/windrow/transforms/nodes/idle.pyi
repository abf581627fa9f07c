from transforms.nodes.idle import *
