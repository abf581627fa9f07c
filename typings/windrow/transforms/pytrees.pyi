from transforms.pytrees import *
