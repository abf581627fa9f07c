from sources.array_record.range_reader import *
