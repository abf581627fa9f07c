from transforms.nodes.on_bad import *
