from transforms.nodes.block_shuffle import *
