from converters.row_features import *
