from sources.tf_example.wire import *
