from sources.array_record.file_lru import *
