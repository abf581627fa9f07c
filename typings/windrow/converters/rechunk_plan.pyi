from converters.rechunk_plan import *
