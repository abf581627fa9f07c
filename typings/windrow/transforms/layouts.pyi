from transforms.layouts import *
