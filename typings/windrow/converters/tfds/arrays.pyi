from converters.tfds.arrays import *
