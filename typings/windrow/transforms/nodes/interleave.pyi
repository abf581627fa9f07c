from transforms.nodes.interleave import *
