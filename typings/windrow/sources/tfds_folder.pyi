from sources.tfds_folder import *
