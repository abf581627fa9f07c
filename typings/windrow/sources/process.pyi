from sources.process import *
