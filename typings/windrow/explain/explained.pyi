from loader.explain.explained import *
