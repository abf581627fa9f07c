from loader.explain.prediction import *
