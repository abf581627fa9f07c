from sources.tfds.features import *
