from loader import *
