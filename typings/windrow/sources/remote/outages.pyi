from sources.remote.outages import *
