from converters.tfds_build import *
