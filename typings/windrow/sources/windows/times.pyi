from sources.windows.times import *
