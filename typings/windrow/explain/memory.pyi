from loader.explain.memory import *
