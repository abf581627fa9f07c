from loader.engine.bad_rows import *
