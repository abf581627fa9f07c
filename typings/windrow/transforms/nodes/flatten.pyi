from transforms.nodes.flatten import *
