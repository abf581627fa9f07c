from sources.windows.labels import *
