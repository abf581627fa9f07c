from sources.tfds.splits import *
