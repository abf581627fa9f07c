from sources.windows.selection import *
