from converters.texts.parquet import *
