from loader.execute import *
