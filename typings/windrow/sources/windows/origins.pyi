from sources.windows.origins import *
