from sources.array_record_simple import *
