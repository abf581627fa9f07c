from sources.tfds.source import *
