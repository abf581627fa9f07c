from sources.tfds_values import *
