from loader.cli.tfds_build import *
