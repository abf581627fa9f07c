from loader.engine.bad_records import *
