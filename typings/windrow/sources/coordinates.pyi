from sources.coordinates import *
