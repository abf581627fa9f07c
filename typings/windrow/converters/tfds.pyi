from converters.tfds import *
