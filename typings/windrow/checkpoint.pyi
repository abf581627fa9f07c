from loader.checkpoint import *
