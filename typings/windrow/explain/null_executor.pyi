from loader.explain.null_executor import *
