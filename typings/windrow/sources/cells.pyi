from sources.cells import *
