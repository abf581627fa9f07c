from sources.highway_hash import *
