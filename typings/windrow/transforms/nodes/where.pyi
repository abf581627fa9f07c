from transforms.nodes.where import *
