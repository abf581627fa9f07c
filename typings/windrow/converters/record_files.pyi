from converters.record_files import *
