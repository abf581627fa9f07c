from sources.window_coordinates import *
