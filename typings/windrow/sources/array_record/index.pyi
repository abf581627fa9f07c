from sources.array_record.index import *
