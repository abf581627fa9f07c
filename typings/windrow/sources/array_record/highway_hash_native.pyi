from sources.array_record.highway_hash_native import *
