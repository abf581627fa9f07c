from loader.engine.lane_reader import *
