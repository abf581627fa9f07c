from sources.remote.faults import *
