from sources.array_record.chunks import *
