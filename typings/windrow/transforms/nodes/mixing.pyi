from transforms.nodes.mixing import *
