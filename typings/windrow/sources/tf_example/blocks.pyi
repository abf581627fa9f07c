from sources.tf_example.blocks import *
