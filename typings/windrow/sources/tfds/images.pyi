from sources.tfds.images import *
