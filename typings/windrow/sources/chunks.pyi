from sources.chunks import *
