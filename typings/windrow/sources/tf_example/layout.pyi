from sources.tf_example.layout import *
