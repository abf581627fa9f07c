from converters.manifest import *
