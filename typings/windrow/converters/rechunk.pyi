from converters.rechunk import *
