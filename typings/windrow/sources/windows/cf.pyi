from sources.windows.cf import *
