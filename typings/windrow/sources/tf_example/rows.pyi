from sources.tf_example.rows import *
