from loader.command_tfds_build import *
