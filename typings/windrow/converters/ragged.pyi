from converters.ragged import *
