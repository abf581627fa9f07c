from converters.tfds_arrays import *
