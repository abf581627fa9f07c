from loader.explain.extrapolation import *
