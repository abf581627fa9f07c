from sources.highway_hash_native import *
