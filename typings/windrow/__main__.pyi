from loader.__main__ import *
