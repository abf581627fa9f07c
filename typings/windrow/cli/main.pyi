from loader.cli.main import *
