from sources.arrays import *
