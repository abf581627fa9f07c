from transforms.nodes.buckets import *
