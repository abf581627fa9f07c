from loader.explain.read_costs import *
