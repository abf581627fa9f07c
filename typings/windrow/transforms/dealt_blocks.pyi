from transforms.dealt_blocks import *
