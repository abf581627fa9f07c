from loader.cli.report import *
