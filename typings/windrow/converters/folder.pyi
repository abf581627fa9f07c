from converters.folder import *
