from converters.tfds.build import *
