from transforms.tables import *
