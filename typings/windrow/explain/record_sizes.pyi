from loader.explain.record_sizes import *
