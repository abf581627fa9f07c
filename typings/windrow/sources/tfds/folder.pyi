from sources.tfds.folder import *
