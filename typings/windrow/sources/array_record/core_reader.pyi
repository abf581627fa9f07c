from sources.array_record.core_reader import *
