from sources.array_record_parts import *
