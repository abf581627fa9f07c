from sources.detection import *
