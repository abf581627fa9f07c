from sources.windows.arguments import *
