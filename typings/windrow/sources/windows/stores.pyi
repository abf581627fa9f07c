from sources.windows.stores import *
