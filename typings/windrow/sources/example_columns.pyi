from sources.example_columns import *
