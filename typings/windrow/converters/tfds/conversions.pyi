from converters.tfds.conversions import *
