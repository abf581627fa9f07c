from transforms.nodes.leaves import *
