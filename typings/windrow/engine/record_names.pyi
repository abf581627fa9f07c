from loader.engine.record_names import *
