from transforms.nodes.base import *
