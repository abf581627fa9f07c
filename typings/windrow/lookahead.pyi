from loader.lookahead import *
