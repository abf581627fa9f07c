from sources.remote.range_cache import *
