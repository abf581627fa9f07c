from transforms.nodes.caught import *
