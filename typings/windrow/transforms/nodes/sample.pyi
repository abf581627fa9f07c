from transforms.nodes.sample import *
