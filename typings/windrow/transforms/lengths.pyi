from transforms.lengths import *
