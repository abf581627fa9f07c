from sources.array_record.cached_groups import *
