from sources.padding import *
