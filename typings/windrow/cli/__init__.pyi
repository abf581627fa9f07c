from loader.cli import *
