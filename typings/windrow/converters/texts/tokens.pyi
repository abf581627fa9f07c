from converters.texts.tokens import *
