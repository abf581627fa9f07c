from sources.windows.aligned import *
