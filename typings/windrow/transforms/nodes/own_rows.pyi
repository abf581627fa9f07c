from transforms.nodes.own_rows import *
