from sources.array_record.package_reader import *
