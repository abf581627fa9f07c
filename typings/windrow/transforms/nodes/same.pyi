from transforms.nodes.same import *
