from transforms.nodes.lengths import *
