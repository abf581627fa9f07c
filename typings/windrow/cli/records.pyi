from loader.cli.records import *
