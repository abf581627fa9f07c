from transforms.row_blocks import *
