from converters.tfrecord import *
