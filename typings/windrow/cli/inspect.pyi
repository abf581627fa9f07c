from loader.cli.inspect import *
