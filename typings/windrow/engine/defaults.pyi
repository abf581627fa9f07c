from loader.engine.defaults import *
