from sources.tf_example.message import *
