from sources.pieces import *
