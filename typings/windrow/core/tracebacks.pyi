from loader.core.tracebacks import *
