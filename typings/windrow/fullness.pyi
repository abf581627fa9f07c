from loader.fullness import *
