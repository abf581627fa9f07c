from loader.cli.convert import *
