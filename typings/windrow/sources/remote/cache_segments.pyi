from sources.remote.cache_segments import *
