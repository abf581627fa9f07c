from sources.array_record_decode import *
