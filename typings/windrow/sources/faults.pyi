from sources.faults import *
