from sources.window_selection import *
