from sources.remote.transports import *
