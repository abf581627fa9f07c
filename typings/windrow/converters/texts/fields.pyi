from converters.texts.fields import *
