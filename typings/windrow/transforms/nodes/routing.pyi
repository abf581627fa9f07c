from transforms.nodes.routing import *
