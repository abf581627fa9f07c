from converters.records.tfrecord import *
