from sources.example_layout import *
