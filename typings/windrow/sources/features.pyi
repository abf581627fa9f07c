from sources.features import *
