from transforms.nodes.shard import *
