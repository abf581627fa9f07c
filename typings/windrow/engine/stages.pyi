from loader.engine.stages import *
