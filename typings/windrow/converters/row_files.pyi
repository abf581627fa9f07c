from converters.row_files import *
