from loader.engine.coming_records import *
