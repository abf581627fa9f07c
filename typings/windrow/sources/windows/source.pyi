from sources.windows.source import *
