from sources.array_record.highway_hash import *
