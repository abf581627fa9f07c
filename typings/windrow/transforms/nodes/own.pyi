from transforms.nodes.own import *
