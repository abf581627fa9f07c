from loader.reading_speed import *
