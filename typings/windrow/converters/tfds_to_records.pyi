from converters.tfds_to_records import *
