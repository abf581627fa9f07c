from sources.tfds_features import *
