from transforms.nodes.whole_chain import *
