from sources.recycled import *
