from transforms.mixtures import *
