from sources.part_sizes import *
