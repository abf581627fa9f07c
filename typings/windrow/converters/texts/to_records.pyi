from converters.texts.to_records import *
