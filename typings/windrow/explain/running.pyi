from loader.explain.running import *
