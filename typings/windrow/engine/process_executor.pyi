from loader.engine.process_executor import *
