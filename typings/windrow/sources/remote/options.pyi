from sources.remote.options import *
