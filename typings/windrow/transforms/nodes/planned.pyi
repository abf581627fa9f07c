from transforms.nodes.planned import *
