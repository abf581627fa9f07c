from transforms.nodes.tail import *
