from transforms.nodes import *
