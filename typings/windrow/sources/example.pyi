from sources.example import *
