from transforms.nodes.values import *
