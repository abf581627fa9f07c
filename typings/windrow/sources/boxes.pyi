from sources.boxes import *
