from sources.windows.parts import *
