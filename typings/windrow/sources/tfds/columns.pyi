from sources.tfds.columns import *
