from loader.engine.read_batches import *
