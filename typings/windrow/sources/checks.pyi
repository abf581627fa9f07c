from sources.checks import *
