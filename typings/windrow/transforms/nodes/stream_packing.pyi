from transforms.nodes.stream_packing import *
