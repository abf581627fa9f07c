from loader.buffers import *
