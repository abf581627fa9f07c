from transforms.orders import *
