from sources.windows.coordinates import *
