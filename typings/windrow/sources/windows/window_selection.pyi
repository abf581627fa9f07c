from sources.windows.window_selection import *
