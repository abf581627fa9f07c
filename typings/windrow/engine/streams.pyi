from loader.engine.streams import *
