from converters.record_groups import *
