from converters.records_work import *
