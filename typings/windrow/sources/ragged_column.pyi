from sources.ragged_column import *
