from sources.windows.world import *
