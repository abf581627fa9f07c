from loader.cli.bench import *
