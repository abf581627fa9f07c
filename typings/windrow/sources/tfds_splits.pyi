from sources.tfds_splits import *
