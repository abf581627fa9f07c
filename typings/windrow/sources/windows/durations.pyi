from sources.windows.durations import *
