from loader.round_plan import *
