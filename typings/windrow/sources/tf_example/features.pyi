from sources.tf_example.features import *
