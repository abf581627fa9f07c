from loader.engine.rows_made_of import *
