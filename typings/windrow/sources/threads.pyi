from sources.threads import *
