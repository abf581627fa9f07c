from sources.tfds import *
