from sources.array_record import *
