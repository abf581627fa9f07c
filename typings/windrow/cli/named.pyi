from loader.cli.named import *
