from sources.example_blocks import *
