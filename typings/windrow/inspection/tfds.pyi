from loader.inspection.tfds import *
