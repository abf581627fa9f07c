from sources.array_record_memory import *
