from transforms.nodes.index import *
