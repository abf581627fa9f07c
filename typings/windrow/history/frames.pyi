from loader.history.frames import *
