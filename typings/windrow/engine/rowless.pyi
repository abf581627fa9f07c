from loader.engine.rowless import *
