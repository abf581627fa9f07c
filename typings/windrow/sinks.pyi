from loader.sinks import *
