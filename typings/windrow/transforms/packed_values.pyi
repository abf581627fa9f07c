from transforms.packed_values import *
