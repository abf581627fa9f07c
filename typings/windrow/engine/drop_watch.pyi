from loader.engine.drop_watch import *
