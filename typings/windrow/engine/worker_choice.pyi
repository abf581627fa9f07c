from loader.engine.worker_choice import *
