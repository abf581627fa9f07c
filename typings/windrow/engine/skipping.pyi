from loader.engine.skipping import *
