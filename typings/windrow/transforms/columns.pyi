from transforms.columns import *
