from sources.array_record.source import *
