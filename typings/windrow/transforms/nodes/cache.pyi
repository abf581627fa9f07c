from transforms.nodes.cache import *
