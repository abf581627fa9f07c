from sources.kept_ranges import *
