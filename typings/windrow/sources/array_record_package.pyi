from sources.array_record_package import *
