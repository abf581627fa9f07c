from loader.cli.cache import *
