from sources.array_record_ranges import *
