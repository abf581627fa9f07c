from sources.array_record.decode import *
