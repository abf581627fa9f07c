from transforms.nodes.pieces import *
