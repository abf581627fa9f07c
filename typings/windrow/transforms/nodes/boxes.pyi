from transforms.nodes.boxes import *
