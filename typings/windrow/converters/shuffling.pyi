from converters.shuffling import *
