from sources.window_origins import *
