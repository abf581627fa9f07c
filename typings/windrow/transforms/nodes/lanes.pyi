from transforms.nodes.lanes import *
