from converters.tfds.builder import *
