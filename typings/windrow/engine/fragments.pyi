from loader.engine.fragments import *
