from transforms.locality import *
