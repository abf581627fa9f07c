from transforms.functions import *
