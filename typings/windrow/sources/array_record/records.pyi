from sources.array_record.records import *
