from converters.tfds.to_records import *
