from sources.array_record.files import *
