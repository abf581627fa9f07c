from sources.windows.window_coordinates import *
