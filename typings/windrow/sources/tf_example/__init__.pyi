from sources.tf_example import *
