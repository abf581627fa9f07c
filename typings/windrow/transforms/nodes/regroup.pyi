from transforms.nodes.regroup import *
