from sources.paths import *
