from sources.foreign import *
