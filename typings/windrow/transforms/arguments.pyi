from transforms.arguments import *
