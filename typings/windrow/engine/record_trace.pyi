from loader.engine.record_trace import *
