from loader.explain.whole_sources import *
