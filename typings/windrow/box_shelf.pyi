from loader.box_shelf import *
