from sources.location import *
