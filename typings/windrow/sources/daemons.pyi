from sources.daemons import *
