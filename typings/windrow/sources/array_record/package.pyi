from sources.array_record.package import *
