from loader.stream import *
