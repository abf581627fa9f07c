from sources.adapt import *
