from sources.windows import *
