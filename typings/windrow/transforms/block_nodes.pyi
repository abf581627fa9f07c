from transforms.block_nodes import *
