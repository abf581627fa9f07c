from converters.match_shards import *
