from sources.tfds.values import *
