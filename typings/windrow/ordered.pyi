from loader.ordered import *
