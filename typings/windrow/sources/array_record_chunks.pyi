from sources.array_record_chunks import *
