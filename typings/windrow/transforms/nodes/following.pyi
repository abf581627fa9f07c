from transforms.nodes.following import *
