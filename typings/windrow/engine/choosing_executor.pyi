from loader.engine.choosing_executor import *
