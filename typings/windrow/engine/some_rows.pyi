from loader.engine.some_rows import *
