from transforms import *
