from transforms.nodes.packing import *
