from converters.rows import *
