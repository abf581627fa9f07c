from sources.window_plan import *
