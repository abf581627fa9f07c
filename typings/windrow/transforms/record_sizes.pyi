from transforms.record_sizes import *
