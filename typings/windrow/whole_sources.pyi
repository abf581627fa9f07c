from loader.whole_sources import *
