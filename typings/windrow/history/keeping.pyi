from loader.history.keeping import *
