from sources.array_record_library import *
