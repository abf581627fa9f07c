from converters.rows_to_records import *
