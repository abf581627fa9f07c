from transforms.nodes.streams import *
