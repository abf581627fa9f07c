from sources.array_record_format import *
