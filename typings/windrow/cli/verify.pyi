from loader.cli.verify import *
