from sources.windows.levels import *
