from sources.selection import *
