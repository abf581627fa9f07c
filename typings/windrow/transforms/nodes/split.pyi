from transforms.nodes.split import *
