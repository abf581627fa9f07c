from converters.texts.inputs import *
