from transforms.nodes.parts import *
