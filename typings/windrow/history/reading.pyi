from loader.history.reading import *
