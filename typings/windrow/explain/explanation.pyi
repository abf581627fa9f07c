from loader.explain.explanation import *
