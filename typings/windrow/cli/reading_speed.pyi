from loader.cli.reading_speed import *
