from sources.tf_example.columns import *
