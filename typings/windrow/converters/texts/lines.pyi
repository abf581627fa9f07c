from converters.texts.lines import *
