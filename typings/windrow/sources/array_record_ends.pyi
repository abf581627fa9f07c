from sources.array_record_ends import *
