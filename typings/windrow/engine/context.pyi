from loader.engine.context import *
