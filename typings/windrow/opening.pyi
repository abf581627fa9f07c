from loader.opening import *
