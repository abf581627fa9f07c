from sources.labels import *
