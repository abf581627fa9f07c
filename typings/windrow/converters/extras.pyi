from converters.extras import *
