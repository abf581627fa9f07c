from sources.tfds_images import *
