from sources.tfds_columns import *
