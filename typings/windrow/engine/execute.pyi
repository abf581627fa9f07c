from loader.engine.execute import *
