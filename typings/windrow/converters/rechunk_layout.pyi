from converters.rechunk_layout import *
