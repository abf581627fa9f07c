from sources.array_record_files import *
