from transforms.nodes.limit import *
