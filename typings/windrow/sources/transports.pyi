from sources.transports import *
