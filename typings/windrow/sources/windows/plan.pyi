from sources.windows.plan import *
