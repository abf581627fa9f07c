from loader.epochs import *
