from sources.crews import *
